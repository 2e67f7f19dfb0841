"""Jobs whose work agents of other makers do, over the Agent2Agent protocol 1.0."""
