"""What runs in the peers' own environment: it imports nothing of osrerank, only the peers' libraries."""
