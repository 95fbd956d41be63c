"""What a broker does by itself: messages that wait (schedule, timer, transactions), name servers (registrar),
and its part in a group of master and slaves (slave, ha_group).
"""
