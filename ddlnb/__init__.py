"""ddlnb."""
