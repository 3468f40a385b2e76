"""Nothing of a real patient leaves this machine."""
