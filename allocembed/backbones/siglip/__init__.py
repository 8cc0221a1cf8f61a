"""SigLIP 2 NaFlex: one vector a frame."""
