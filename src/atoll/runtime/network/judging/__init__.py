"""How what a site sends is judged: by what the request asks for, by its cohort, and by how much it is."""
