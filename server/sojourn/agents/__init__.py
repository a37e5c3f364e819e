"""Where core, models, tools and store meet: the loop, the hub that owns all runs, the feed of events."""
