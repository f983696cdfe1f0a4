"""Named activations, edits of them, and clamps: interventions wrap every model."""
