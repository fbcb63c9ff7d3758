"""An opened frame, read by regions; a frame being written, from blocks to the commit."""
