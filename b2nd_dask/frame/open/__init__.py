"""From byte ranges to a parsed frame, and the opened frames of this process."""
