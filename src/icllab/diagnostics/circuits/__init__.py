"""Circuits of a language model: patching, attribution of logits, the logit lens by token, task vectors."""
