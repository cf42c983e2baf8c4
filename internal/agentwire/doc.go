// Package agentwire is the protocol between a node and the agent inside a sandbox: both ends, and nothing else. It knows
// how a request, its bytes and its answer travel; what they do is the agent's, behind the interface Machine, which Client
// implements on the node's side, so that a call looks the same on both ends.
//
// One connection is one yamux session with flow control per stream. Before it starts, both ends exchange a hello that
// settles the version. Each request is one stream: a JSON frame with the request, frames with the byte strings that JSON
// cannot carry (paths, commands, environment), perhaps frames of data, then the answer's frames. The client closes first;
// a stream that it closes early means that the client left, which ends nothing but the answer.
//
// Commands without input, of which an answer is awaited, travel on further connections where there can be some: a lane carries one
// request at a time and no session (lane.go, lane_server.go), so that a short command waits for fewer goroutines.
//
// The agent is hostile for the node: every length is checked before memory is taken for it, frames that an honest agent
// never sends end the session (guard.go), and error texts and codes are cut to what an agent may say. A session that ends
// ends every call on it with ErrLost.
//
// An agent may be older than the node, for its sandbox outlives an upgrade. Its hello names the features that it has; what
// needs another one is refused here, as "the sandbox runs an older agent", and everything else goes on (hello.go).
//
// To add a request: a constant beside the other ops, its fields in request or message, one method on Machine, Client and
// server, and the feature that it needs in hello.go; raise versionMax when a feature is not enough.
package agentwire
