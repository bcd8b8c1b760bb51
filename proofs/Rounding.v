(* Rounding of noise that commutes with adding a whole count
   (src/evercount/factorizations/laplace_bridge.proof.md, "Rounding"; terrace.proof.md, section 4).

   Noise is a multiple of 1/q. v stands for v/q. *)

Require Import ZArith Lia.
Open Scope Z_scope.

Definition dithered (q omega v : Z) : Z := (v + omega) / q.
Definition halves_up (q v : Z) : Z := (2 * v + q) / (2 * q).
Definition halves_down (q v : Z) : Z := - ((q - 2 * v) / (2 * q)).

Theorem dithered_commutes : forall q omega v x, 0 < q -> dithered q omega (x * q + v) = x + dithered q omega v.
Proof.
  intros q omega v x positive; unfold dithered.
  replace (x * q + v + omega) with ((v + omega) + x * q) by lia.
  rewrite Z.div_add; lia.
Qed.

Theorem halves_up_commutes : forall q v x, 0 < q -> halves_up q (x * q + v) = x + halves_up q v.
Proof.
  intros q v x positive; unfold halves_up.
  replace (2 * (x * q + v) + q) with ((2 * v + q) + x * (2 * q)) by lia.
  rewrite Z.div_add; lia.
Qed.

Theorem halves_down_commutes : forall q v x, 0 < q -> halves_down q (x * q + v) = x + halves_down q v.
Proof.
  intros q v x positive; unfold halves_down.
  replace (q - 2 * (x * q + v)) with ((q - 2 * v) + (- x) * (2 * q)) by lia.
  rewrite Z.div_add; lia.
Qed.

(* The two rules mirror each other, so with a fair coin between them errors are symmetric about 0. *)
Theorem halves_mirror : forall q v, halves_down q (- v) = - halves_up q v.
Proof.
  intros; unfold halves_down, halves_up.
  replace (q - 2 * - v) with (2 * v + q) by lia. reflexivity.
Qed.

(* Halves to even do not commute, with q = 2 and v = 1, that is one half: the hole that was found. *)
Definition halves_to_even (q v : Z) : Z := if Z.even (halves_up q v) then halves_up q v else halves_down q v.

Theorem halves_to_even_do_not_commute : exists q v x, 0 < q /\ halves_to_even q (x * q + v) <> x + halves_to_even q v.
Proof. exists 2, 1, 1. split; [lia | vm_compute; discriminate]. Qed.
