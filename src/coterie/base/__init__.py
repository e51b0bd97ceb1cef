"""What every room may use: files, random numbers, nested dicts, checks of arguments, words."""
