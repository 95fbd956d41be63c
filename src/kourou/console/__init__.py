"""The web console: a cluster of Java's or of Kourou's, in a browser (extra `console`).

What lives here: pages, who may see and do what, and one poller that asks the cluster for all of them. What
does not: how a cluster is asked; that is `kourou.admin`.

The way of a request: `gate` checks where it comes from and who sends it, `layout` draws the frame of the
page, one module of `pages` what is in it. The pages read what the poller of `backend` last saw, and ask the
cluster through it for details; every question has an end, and is shared among the tabs that ask it. What
changes something goes through `View.change`, which checks who may, whatever the page has shown.
"""
