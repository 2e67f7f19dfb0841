"""What is asked about the log as a whole, apart from its ops: checkpoints."""
