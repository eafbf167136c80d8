package telemetry

import (
	"encoding/json"
	"fmt"

	"github.com/nats-io/nkeys"
)

// signContext separates order signatures from everything else the same key
// might ever sign.
const signContext = "evenkeel/order/v1\n"

// MaxOrderBytes bounds what an agent will even look at.
const MaxOrderBytes = 64 << 10

// Envelope carries a signed payload. The signature is over the exact payload
// bytes; they are never encoded again before the check.
type Envelope struct {
	Payload   []byte `json:"payload"`
	KeyID     string `json:"key_id"`
	Signature []byte `json:"signature"`
}

// Signer signs orders with an Ed25519 NKey.
type Signer struct {
	pair nkeys.KeyPair
	id   string
}

// NewSigner reads an NKey seed (SU…).
func NewSigner(seed []byte) (*Signer, error) {
	pair, err := nkeys.FromSeed(seed)
	if err != nil {
		return nil, fmt.Errorf("signing key: %w; want an NKey user seed (SU…)", err)
	}
	id, err := pair.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	if !nkeys.IsValidPublicUserKey(id) {
		return nil, fmt.Errorf("signing key: want an NKey user seed (SU…)")
	}
	return &Signer{pair, id}, nil
}

// NewSeed makes a signing key.
func NewSeed() ([]byte, error) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return nil, err
	}
	return pair.Seed()
}

// KeyID is the public key; agents trust it by listing it.
func (s *Signer) KeyID() string { return s.id }

// SignOrder encodes and signs an order.
func (s *Signer) SignOrder(o *Order) ([]byte, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	payload, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("encode order: %w", err)
	}
	sig, err := s.pair.Sign(append([]byte(signContext), payload...))
	if err != nil {
		return nil, fmt.Errorf("sign order: %w", err)
	}
	return json.Marshal(Envelope{Payload: payload, KeyID: s.id, Signature: sig})
}

// Trust is the set of public keys whose orders count.
type Trust map[string]nkeys.KeyPair

// NewTrust reads public NKeys (U…).
func NewTrust(keys ...string) (Trust, error) {
	t := Trust{}
	for _, k := range keys {
		if !nkeys.IsValidPublicUserKey(k) {
			return nil, fmt.Errorf("trusted key %q: want a public NKey (U…)", k)
		}
		pair, err := nkeys.FromPublicKey(k)
		if err != nil {
			return nil, fmt.Errorf("trusted key %q: %w", k, err)
		}
		t[k] = pair
	}
	return t, nil
}

// OpenOrder checks size, signature and shape, in that order, and returns the
// order. Forged orders give DropForged.
func (t Trust) OpenOrder(data []byte) (*Order, error) {
	if len(data) > MaxOrderBytes {
		return nil, drop(DropOversized, "order of %d bytes, at most %d", len(data), MaxOrderBytes)
	}
	var e Envelope
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, drop(DropMalformed, "order envelope: %v", err)
	}
	pair, ok := t[e.KeyID]
	if !ok {
		return nil, drop(DropForged, "order signed by a key that is not trusted here: %q", e.KeyID)
	}
	if err := pair.Verify(append([]byte(signContext), e.Payload...), e.Signature); err != nil {
		return nil, drop(DropForged, "order signature does not hold")
	}
	o := new(Order)
	if err := json.Unmarshal(e.Payload, o); err != nil {
		return nil, drop(DropMalformed, "order: %v", err)
	}
	if err := o.Check(); err != nil {
		return nil, drop(DropMalformed, "%v", err)
	}
	return o, nil
}
