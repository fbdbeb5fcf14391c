"""What is wrong: estimates, likely causes, smaller layers, and the messages that say so."""
