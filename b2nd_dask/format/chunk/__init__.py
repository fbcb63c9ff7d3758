"""One compressed chunk: its header and the checks of it, constants, some of its blocks, coding."""
