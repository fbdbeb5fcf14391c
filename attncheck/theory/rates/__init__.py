"""Distance between the law at finite width and the limit, and its rate in the width."""
