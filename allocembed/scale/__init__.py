"""Many machines: index and embed with Ray. Ray is imported only when it is used."""
