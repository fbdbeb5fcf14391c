"""What knows nothing of attention: errors, files, streams, processes, words."""
