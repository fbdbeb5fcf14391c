"""The paper's published experiments at full size, next to exact values."""
