"""When a gain is clear: one table of factors, one correction, one interval and one mark, whatever produced the losses."""
