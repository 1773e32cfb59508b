"""Plans over traffic: requests drawn or recorded, trials simulated and judged, a search among them, and how sure the answer is."""
