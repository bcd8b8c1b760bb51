(* The shares of a path add up (src/evercount/factorizations/laplace_bridge.proof.md, Lemma 1): each node takes a part of
   what its ancestors left, and the leaf takes the rest. *)

Require Import ZArith List Lia.
Import ListNotations.
Open Scope Z_scope.

Fixpoint path (left : Z) (take : list (Z -> Z)) : list Z :=
  match take with
  | [] => [left]
  | part :: rest => part left :: path (left - part left) rest
  end.

Fixpoint total (shares : list Z) : Z :=
  match shares with
  | [] => 0
  | share :: rest => share + total rest
  end.

Theorem shares_of_a_path_add_up : forall take units, total (path units take) = units.
Proof. induction take as [| part rest IH]; simpl; intros; [lia | rewrite IH; lia]. Qed.

Theorem shares_are_nonnegative : forall take units, 0 <= units ->
  Forall (fun part => forall left, 0 <= left -> 0 <= part left <= left) take ->
  Forall (fun share => 0 <= share) (path units take).
Proof.
  induction take as [| part rest IH]; simpl; intros units positive parts; inversion parts; subst; constructor; auto.
  - apply H1; assumption.
  - apply IH; [pose proof (H1 units positive); lia | assumption].
Qed.
