package cli

import "context"

func replay(ctx context.Context, c *env) error { return nil }
