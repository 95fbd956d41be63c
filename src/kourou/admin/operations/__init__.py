"""What an operator can ask or order, declared once. `kourou admin`, `kourou mqadmin` and the console show it.

    declare       how an operation is declared: what it is given, what it answers, who may
    parameters    what people read of parameters, and how texts are read
    topics, groups, offsets, messages, brokers, name_servers, access, metadata    the operations

How they look is not here: that is `kourou.cli`'s and `kourou.console`'s.
"""

from kourou.admin.operations import access as access
from kourou.admin.operations import brokers as brokers
from kourou.admin.operations import groups as groups
from kourou.admin.operations import messages as messages
from kourou.admin.operations import metadata as metadata
from kourou.admin.operations import name_servers as name_servers
from kourou.admin.operations import offsets as offsets
from kourou.admin.operations import topics as topics
from kourou.admin.operations.declare import OPERATIONS as OPERATIONS
