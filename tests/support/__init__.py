"""What tests share: the golden data of Apache RocketMQ (golden) and its real Java code (java)."""
