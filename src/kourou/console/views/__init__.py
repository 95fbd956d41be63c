"""What pages are made of: the frame (layout), tables, cards, dialogs, the search; and the View, which is
what a page has at hand.
"""
