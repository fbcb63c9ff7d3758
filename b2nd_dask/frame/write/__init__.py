"""Writing a frame: encode blocks, stage them, commit. Stands on `frame.read`, never the reverse."""
