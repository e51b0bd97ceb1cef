"""Two roles, two commands: a hub and its sites, as folders and processes that are plain Flower underneath.

`invitation.py` is what a hub hands to a site; `keys.py` makes certificates and keys; `gate.py` is the only door of the hub
that other machines reach; `daemons.py` starts Flower's SuperLink and SuperNode; `processes.py` keeps them running; `hub.py`
and `site.py` are the two folders; `report.py` says what left a site; `doctor.py` looks at a site before a run.
"""
