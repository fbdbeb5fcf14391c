"""What is computed: limits, rates, and the conjecture for stacks."""
