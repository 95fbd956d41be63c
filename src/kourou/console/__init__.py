"""The web console: a cluster of Java's or of Kourou's, in a browser (extra `console`).

    server, config     the console as a process
    door/              who comes in: every request, logins, sessions, users
    backend, contents  one poller that asks the cluster for all pages; reading
    views/             what pages are made of: frame, tables, dialogs, search
    pages/             the pages
    store/, pipeline/  what the store browser and Spark jobs need
    texts              what it says, in English and in Chinese

How a cluster is asked is not here; that is `kourou.admin`.

The way of a request: `gate` checks where it comes from and who sends it, `layout` draws the frame of the
page, one module of `pages` what is in it. The pages read what the poller of `backend` last saw, and ask the
cluster through it for details; every question has an end, and is shared among the tabs that ask it. What
changes something goes through `View.change`, which checks who may, whatever the page has shown.
"""
