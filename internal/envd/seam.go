package envd

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/envd/wire"
)

// Seam tells the agent how its copies are taken up (wire.SeamPath).
func (c *Client) Seam(ctx context.Context, keys wire.Seam) error {
	body, err := json.Marshal(keys)
	if err != nil {
		return c.error(where{op: "snapshot"}, backend.ErrInvalid, err)
	}
	return c.plain(ctx, "snapshot", http.MethodPost, wire.SeamPath, body, nil)
}
