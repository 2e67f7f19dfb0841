"""What jobs use and cost: rate cards, budgets and their caps."""
