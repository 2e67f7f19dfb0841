"""The families of this program, a folder each. `facts` has the payloads and what the program must know about them,
`rules` how they are folded: both import nothing that reads the world. The folder's own module has the `Family` record,
by which the kernel and the log learn of the family.
"""

from hocket.families import availability, inbox, kinds, locks, retention, rows
from hocket.kernel.family import register

# A transaction stores what has changed in this order.
register(kinds.FAMILY, locks.FAMILY, rows.FAMILY, availability.FAMILY, inbox.FAMILY, retention.FAMILY)
