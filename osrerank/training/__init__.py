"""Training and export; needs the torch extra."""
