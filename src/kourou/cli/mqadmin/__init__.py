"""kourou mqadmin: Java's verbs with Java's flags; `verbs` declares what the other modules do."""
