"""How far the law at finite width is from the limit, and how fast that distance falls with the width."""
