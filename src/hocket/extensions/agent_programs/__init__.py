"""Programs of coding agents, such as Claude Code: their set-up, and the hooks that hold their edits to the locks."""
