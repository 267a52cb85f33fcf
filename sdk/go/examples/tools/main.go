// Program tools runs tools of an agent whose calls a mesh decides.
package main

import (
	"context"
	"errors"
	"fmt"
	"iter"

	agents "github.com/binnacle-mesh/binnacle/sdk/go"
)

type sum struct {
	A int `json:"a"`
	B int `json:"b"`
}

func main() {
	ctx := context.Background()
	mesh := &agents.Mesh{
		Agent:     "crew-go",
		OnReceipt: func(r agents.Receipt) { fmt.Println("receipt", r.Status, r.AttestedBy) },
		Kinds: func(tool string, _ any) (string, map[string]any) {
			if tool != "open_page" {
				return "", nil
			}
			return "client.web.fetch", map[string]any{"url": "https://example.com/", "host": "example.com"}
		},
	}

	add := agents.Wrap(mesh, "add", func(_ context.Context, in sum) (int, error) { return in.A + in.B, nil })
	fmt.Println(add(ctx, sum{A: 1, B: 2}))

	open := agents.Wrap(mesh, "open_page", func(context.Context, string) (string, error) { return "a page", nil })
	var denied *agents.DeniedError
	if _, err := open(ctx, "https://example.com/"); errors.As(err, &denied) {
		fmt.Println("denied", denied.Decision.ReasonCode, denied.Decision.ReceiptID != "")
	}

	for n, err := range agents.Stream(ctx, mesh, "count", 2, count) {
		fmt.Println(n, err)
	}
}

func count(context.Context) iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		for n := range 2 {
			if !yield(n, nil) {
				return
			}
		}
	}
}
