package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/llm"
)

type chatOptions struct {
	session, model string
	stream         bool
}

// newChatCmd returns the command chat, which sends a message to a model and prints the
// response.
func newChatCmd(c *env) *cobra.Command {
	var o chatOptions
	cmd := &cobra.Command{
		Use:   "chat MESSAGE…",
		Short: "Send one message to a model and print the answer",
		Long: `Send one message to a model and print its answer. The words of the message are
joined by spaces. The receipt and session are printed on standard error.`,
		Example: `  binnacle chat hello from the demo model
  binnacle chat --model demo/echo --stream --session s-tour one two three`,
		Args:              takes(1, -1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, args []string) error { return runChat(cmd.Context(), c, &o, args) },
	}
	f := cmd.Flags()
	f.StringVar(&o.session, "session", "", "`NAME` of the session (s-…), or its id")
	f.StringVar(&o.model, "model", llm.DemoModel, "`MODEL` as provider/model")
	f.BoolVar(&o.stream, "stream", false, "print the answer as it arrives")
	complete(cmd, "model", completeModels(c))
	return cmd
}

func runChat(ctx context.Context, c *env, o *chatOptions, pos []string) error {
	body := map[string]any{"model": o.model, "stream": o.stream, "messages": []map[string]string{{"role": "user", "content": strings.Join(pos, " ")}}}
	resp, err := c.request(ctx, http.MethodPost, "/v1/chat/completions", body, session(o.session))
	if err != nil {
		return suggestModel(ctx, c, err, o.model)
	}
	defer resp.Body.Close()
	defer fmt.Fprintf(c.errOut, "receipt %s  session %s\n", resp.Header.Get("X-Binnacle-Receipt-Id"), resp.Header.Get("X-Binnacle-Session"))
	if o.stream {
		return printStream(c, resp.Body)
	}
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	var doc struct {
		Choices []struct {
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
		} `json:"choices"`
	}
	if err := json.Unmarshal(raw, &doc); !c.structured() && (err != nil || len(doc.Choices) == 0) {
		return fail(exitFailed, "the response has no choice: %s", raw)
	}
	return c.printRaw(append(raw, '\n'), func() { fmt.Fprintln(c.out, doc.Choices[0].Message.Content) })
}

// printStream prints the text of a chat stream as it arrives, or its chunks if the
// output format is structured. It returns an error if the stream reports one or ends
// without [DONE].
func printStream(c *env, r io.Reader) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 4<<20)
	for sc.Scan() {
		data, ok := strings.CutPrefix(sc.Text(), "data: ")
		switch {
		case !ok:
			continue
		case data == "[DONE]" && c.structured():
			return nil
		case data == "[DONE]":
			_, err := fmt.Fprintln(c.out)
			return err
		}
		var chunk struct {
			Choices []struct {
				Delta struct {
					Content string `json:"content"`
				} `json:"delta"`
			} `json:"choices"`
			Error *struct {
				Message string `json:"message"`
			} `json:"error"`
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return err
		}
		if err := c.printRaw([]byte(data+"\n"), func() {
			for _, ch := range chunk.Choices {
				fmt.Fprint(c.out, ch.Delta.Content)
			}
		}); err != nil {
			return err
		}
		if chunk.Error != nil {
			return fail(exitFailed, "%s", chunk.Error.Message)
		}
	}
	if err := sc.Err(); err != nil {
		return fail(exitFailed, "the stream broke off: %v", err)
	}
	return fail(exitFailed, "the stream ended without [DONE]")
}
