"""How many workers, how much Redis and how much disk a load needs: measured rates and a queueing model."""
