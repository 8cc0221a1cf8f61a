"""Decoders behind one interface: `base.Decoder`."""
