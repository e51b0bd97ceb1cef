"""What passes between server and clients: the messages, and the channels that transform them."""
