package llm

import (
	"strings"
	"unicode/utf8"
)

// shape lists the members of an object that have a meaning in any API, with the shape of
// each member's value. Other members are forwarded without being interpreted. A member
// whose name differs from a known one only by case is refused, because some readers
// would accept it as the known member and others would not.
type shape struct {
	known map[string]known // by lower-case name
}

// known is a member that has a meaning in some API.
type known struct {
	name string
	in   *shape // shape of the member's value, or of the elements of its list; nil: not read
	at   int    // position in the shape, below maxKnown
}

// maxKnown is the maximum number of members of a shape.
const maxKnown = 192

// leaf is the shape of a value that is not read.
var leaf *shape

// members returns a shape of the named members, whose values are not read. The names are
// separated by blanks.
func members(names string) *shape { return (&shape{known: map[string]known{}}).with(nil, names) }

// with adds members whose values have the shape in, and returns s. The names are
// separated by blanks.
func (s *shape) with(in *shape, names string) *shape {
	for n := range strings.FieldsSeq(names) {
		if len(s.known) == maxKnown {
			panic("llm: a shape has too many members")
		}
		s.known[strings.ToLower(n)] = known{n, in, len(s.known)}
	}
	return s
}

// find returns the member with a name, compared without regard to case as encoding/json
// does. exact reports whether the names are also equal in case.
func (s *shape) find(name []byte) (k known, found, exact bool) {
	if len(name) > 2*maxName {
		return known{}, false, false
	}
	var room [2 * maxName]byte
	fold := room[:0]
	for i := 0; i < len(name); {
		c := name[i]
		if c < utf8.RuneSelf {
			if c >= 'A' && c <= 'Z' {
				c += 'a' - 'A'
			}
			fold = append(fold, c)
			i++
			continue
		}
		r, n := utf8.DecodeRune(name[i:])
		switch r { // the only two characters outside ASCII that fold to ASCII letters
		case '\u017f': // ſ, the long s
			fold = append(fold, 's')
		case '\u212a': // the sign for kelvin, which looks like K
			fold = append(fold, 'k')
		default:
			return known{}, false, false
		}
		i += n
	}
	k, found = s.known[string(fold)]
	return k, found, found && k.name == string(name)
}

// maxName is longer, in bytes, than every known name.
const maxName = 64

// The shapes of the objects in a request. Each contains the members of all APIs, so that
// no translation to another API reads a member that was not checked here.
var (
	function  = members("name description parameters strict format arguments input type")
	choice    = members("type name mode function custom tools allowed_tools disable_parallel_tool_use server_label")
	toolShape = members("").with(function, "function custom").
			with(leaf, "type name tools description parameters strict format input_schema cache_control defer_loading server_label server_url server_description connector_id headers authorization require_approval allowed_tools mcp_server_name functionDeclarations function_declarations toolSpec tool_spec")
	mcpServer = members("type url name authorization_token").with(members("enabled allowed_tools"), "tool_configuration")

	// item is the shape of a message, of an input item, and of a content part, at any
	// depth.
	item = itemShape()

	schema = members("name description schema strict type")
	format = members("").with(schema, "json_schema format").with(leaf, "type name description schema strict verbosity effort")

	thinking = members("type budget_tokens display effort summary generate_summary max_tokens enabled exclude thinkingBudget thinking_budget thinkingLevel thinking_level includeThoughts include_thoughts")
	config   = members("").with(thinking, "thinkingConfig thinking_config").with(leaf, "maxOutputTokens max_output_tokens candidateCount candidate_count maxTokens max_tokens")

	root = rootShape()
)

// itemShape returns the shape item, which contains itself: parts are nested at any depth.
func itemShape() *shape {
	s := members("type role name text refusal detail file_id file_url file_data filename title id call_id tool_call_id tool_use_id namespace arguments input is_error thinking signature data encrypted_content status cache_control reasoning reasoning_content server_label tool_name url media_type mime_type approval_request_id")
	s.with(members("url detail file_id"), "image_url video_url audio_url")
	s.with(members("data format"), "input_audio")
	s.with(members("file_data file_id filename file_url url"), "file")
	s.with(members("").with(function, "function custom").with(members("").with(members("thought_signature"), "google"), "extra_content").with(leaf, "type id index name input"), "tool_calls")
	s.with(function, "function_call")
	s.with(members("type text data signature summary id format index"), "reasoning_details")
	s.with(members("id"), "audio")
	s.with(leaf, "tools allowed_tools")
	return s.with(s, "content output summary source")
}

// rootShape returns the shape of the request as a whole.
func rootShape() *shape {
	s := members("model stream n best_of store user metadata seed stop temperature top_p top_k logprobs top_logprobs presence_penalty frequency_penalty parallel_tool_calls prompt_cache_key stop_sequences instructions suffix include truncation background previous_response_id conversation client_metadata dimensions encoding_format modalities prediction prompt_cache_retention safety_identifier service_tier verbosity logit_bias")
	s.with(leaf, strings.Join(bounds, " "))
	s.with(leaf, "reasoning_effort thinking_budget num_return_sequences candidateCount candidate_count")
	s.with(leaf, "tools functions mcp_servers plugins web_search_options search_parameters preset models route prompt")
	s.with(item, "messages input system contents systemInstruction system_instruction")
	s.with(choice, "tool_choice function_call")
	s.with(members("include_usage include_obfuscation"), "stream_options")
	s.with(format, "response_format text output_config output_format")
	s.with(thinking, "reasoning thinking thinkingConfig thinking_config")
	s.with(config, "generationConfig generation_config inferenceConfig inference_config")
	return s.with(leaf, "toolConfig tool_config cachedContent cached_content additionalModelRequestFields container context_management")
}

// bounds lists the members that limit the tokens of an answer, in any API.
var bounds = []string{"max_tokens", "max_completion_tokens", "max_output_tokens", "max_tokens_to_sample", "max_new_tokens", "max_gen_len", "num_predict", "maxTokens", "maxOutputTokens"}

// bounding maps a kind to the elements of bounds that apply in its API.
var bounding = map[string][]string{Chat: {"max_tokens", "max_completion_tokens"}, Completions: {"max_tokens"}, Messages: {"max_tokens"}, Responses: {"max_output_tokens"}}
