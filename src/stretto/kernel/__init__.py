"""What everything stands on: child processes that can be killed, and the signals that end a command."""
