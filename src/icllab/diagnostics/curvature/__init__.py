"""Spectra of Hessians and Fisher matrices, by matrix-free Krylov methods."""
