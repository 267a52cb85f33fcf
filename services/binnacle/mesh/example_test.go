package mesh_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"

	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
)

// A Go program can embed a whole mesh and call it over HTTP.
func ExampleStart() {
	dir, err := os.MkdirTemp("", "mesh-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	m, err := mesh.Start(context.Background(), mesh.Config{Dir: dir, Addr: "127.0.0.1:0"})
	if err != nil {
		log.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPost, "http://"+m.Addr+"/v1/chat/completions",
		strings.NewReader(`{"model":"demo/echo","messages":[{"role":"user","content":"hello"}]}`))
	if err != nil {
		log.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+m.Token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(resp.Header.Get("X-Binnacle-Verdict"), strings.Contains(string(body), `"content":"hello"`))
	fmt.Println(m.Stop())
	// Output:
	// ALLOW true
	// <nil>
}
