"""The panel's timeline as one offline HTML page, with its data inside."""
