"""When is a gain clear? One table of factors, one correction, one interval and one mark, whatever produced the losses."""
